"""Facts of the cluster and of this node, and the metadata log, which has them on disk."""
