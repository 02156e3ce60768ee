"""The toolstacks, which drive domains.  Their port is ``protect.model.toolstack``."""
