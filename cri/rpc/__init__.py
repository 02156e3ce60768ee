"""The CRI RuntimeService: each RPC calls its verb, and turns records into messages."""
