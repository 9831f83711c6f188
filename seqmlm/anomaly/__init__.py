"""What an anomaly is: records as a model saw them, judged as wholes and in parts, against what is normal."""
