"""Shows files and directories of the host to zones, by bind mounts in the directory that a zone shares."""
