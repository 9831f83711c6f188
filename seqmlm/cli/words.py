"""Words that several commands' help texts share."""

DOMAIN = "What the sequences are: code, dna, ehr, logs, protein, text, or a plugin's."
