"""The zone channel's host side: frames, streams, and the link that carries them (docs/channel.md)."""
