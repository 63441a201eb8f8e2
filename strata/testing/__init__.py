"""What tests, tools and plugin authors share: tiny models, clients, llama.cpp as a judge. No server code imports it."""
