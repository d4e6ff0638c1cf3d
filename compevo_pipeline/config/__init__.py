"""Settings of a deployment, and what they name: endpoints, publishers, the commit."""
