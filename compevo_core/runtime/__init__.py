"""What the process runs on: files, locks, memory, several processes."""
