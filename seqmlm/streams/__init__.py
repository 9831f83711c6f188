"""Where results go and how far they have come, and live input: sinks, cursors, sources."""
