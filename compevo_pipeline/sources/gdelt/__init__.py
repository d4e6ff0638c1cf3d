"""GDELT: news articles, from bulk files and the document API."""
