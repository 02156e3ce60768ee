"""The host's side of a zone's network: moving its interface and splicing it to the pod's."""
