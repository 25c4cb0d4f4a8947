"""Models behind a server that speaks the protocol of OpenAI."""
