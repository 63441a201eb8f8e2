"""What tests, tools and plugin authors share: tiny models, clients, and llama.cpp as a judge. Never imported by the server."""
