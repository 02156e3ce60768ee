"""Claims of zone memory for pods that only set limits: the policy, and the templates for the policy."""
