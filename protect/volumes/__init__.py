"""Shows files and directories of the host to zones, by bind mounts in a zone's shared directory."""
