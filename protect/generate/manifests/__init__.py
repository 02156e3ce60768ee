"""Changes to manifests in which everything else stays as it was written."""
