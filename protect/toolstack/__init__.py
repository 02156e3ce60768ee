"""The toolstacks, which drive domains; their port is ``protect.model.toolstack``."""
