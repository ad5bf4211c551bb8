"""From the bytes of a YAML file to Specs or to located diagnostics.

`source` decodes, `masks` hides secrets in what is shown, `tree` reads YAML with every value's place, `fields` and
`rules` check one document, `spec` puts them together, `files` finds the files, `schema` says the same rules as JSON
Schema. `document` is a file that is edited in place.
"""
