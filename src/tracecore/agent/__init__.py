"""The running agent: the Collector's configuration, components wired into pipelines, a service that keeps them up."""
