"""What is unusual, and how unusual: units, parts and records as rows of statistics; see docs/SCORING.md."""
