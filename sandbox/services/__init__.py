"""Azure's services, a file a kind of resource. `catalog` lists them all."""
