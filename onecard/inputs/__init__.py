"""What a user names -> what the core takes: files, folders, cards and keys -> configs, places and cases."""
