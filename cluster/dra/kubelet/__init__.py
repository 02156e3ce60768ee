"""The kubelet's requests to the driver, on unix sockets in the kubelet's folders."""
