"""What Xen keeps in xenstore of its domains, for as long as there is one."""
