"""From the bytes of a YAML file to Specs or to located diagnostics.

`source` decodes, `redaction` hides secrets in what is shown, `tree` reads YAML with every value's place, `fields` and
`rules` check one document, `spec` combines them, `files` finds the files, and `schema` states the same rules as JSON
Schema. `document` is a file that is edited in place.
"""
