"""The catalog of everything behind the proxy: tools, rules, references, resources, prompts."""
