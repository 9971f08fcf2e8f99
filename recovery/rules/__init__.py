"""What is known about failures, as data: each table names its source and is read by recovery.verdict and recovery.culprit."""
