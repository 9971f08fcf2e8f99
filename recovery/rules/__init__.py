"""What is known about failures, as data: each table names its source. Read by recovery.verdict and culprit."""
