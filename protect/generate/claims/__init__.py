"""Claims of zone memory for pods that only say limits: the policy, and the templates that it chooses from."""
