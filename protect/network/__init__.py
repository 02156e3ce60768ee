"""The host's side of a zone's network: moves the zone's interface and splices it to the pod's."""
