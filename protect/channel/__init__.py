"""The zone channel's host side: frames, streams, and the link that keeps them alive (docs/channel.md)."""
