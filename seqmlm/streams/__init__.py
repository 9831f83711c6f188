"""Where results go and how far they have come: sinks, cursors that survive a kill, live input."""
