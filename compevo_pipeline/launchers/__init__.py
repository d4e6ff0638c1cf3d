"""Where a training runs: a process, torchrun or Kubernetes; and how it reports its progress."""
