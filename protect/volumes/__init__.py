"""How files and directories of the host reach a zone: bind mounts in the directory it shares."""
