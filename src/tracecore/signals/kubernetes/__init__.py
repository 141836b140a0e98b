"""Kubernetes events, pods and nodes."""
