"""Files and directories of the host in zones: bind mounts in the directory that a zone shares."""
