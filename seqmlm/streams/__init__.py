"""Input and output streams: sinks for results, cursors that record progress, and sources of live input."""
