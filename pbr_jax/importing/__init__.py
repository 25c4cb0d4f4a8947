"""Data of one's own, imported: tables, chats and mail become a folder of the benchmark `own`."""
