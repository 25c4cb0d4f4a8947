"""A system as a service: a web server, tools for agents, and retrievers of other frameworks."""
