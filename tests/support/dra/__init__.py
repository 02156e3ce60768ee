"""An API server with the objects of resource.k8s.io, and a kubelet, for tests of the DRA driver."""
