"""xenpod's contracts: CRI v1, protect.v1, images.v1 and the zone channel (generated from the .proto files)."""

# From a checkout's root Python would also find this as `proto.xenpod_proto`, with every message a second,
# different class; and `proto` belongs to the proto-plus package (docs/adr/0001).
if __name__ != "xenpod_proto":
    raise ImportError(f"import xenpod_proto, not {__name__}")
