"""What kforge is measured on: workloads, how they are timed, and the tables made of the rows."""
