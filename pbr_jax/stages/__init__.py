"""What several methods stand on, as nodes of the graph: data, documents and users as vectors, feedback,
rankings of any range of questions, language models. Functions here choose nodes; nodes compute."""
