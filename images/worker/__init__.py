"""Worker processes: what a stranger's bytes may take of the host ends with the process that reads them."""
