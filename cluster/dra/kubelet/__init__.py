"""What the kubelet asks of the driver, on unix sockets of its folders."""
