"""What speaks to the cluster: the DRA driver, the node labeller, their client, and objects to apply."""
