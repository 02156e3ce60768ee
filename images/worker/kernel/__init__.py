"""Files of kernel images: the part of the work that reads hostile layers."""
