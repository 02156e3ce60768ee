"""Container Network Interface: network namespaces, configuration, plugin calls."""
