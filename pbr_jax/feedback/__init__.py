"""Feedback: how good answers become with a document, as the teacher of retrievers and rerankers."""
