"""``protect image``: the images of xenpod-cri."""
