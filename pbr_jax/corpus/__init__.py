"""Documents and users that come and go: the store of documents, their vectors, and the search over both."""
