"""`seqmlm score`, `review`, `calibrate` and `evaluate`: how unusual records are, and how good that is."""
